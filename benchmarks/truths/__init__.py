"""Which uses of negatives help, and by whose truth: adapters on strong frozen towers, Flickr8k."""
