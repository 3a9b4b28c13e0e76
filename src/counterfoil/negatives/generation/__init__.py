"""Generated negative captions: TAGS and rules."""
