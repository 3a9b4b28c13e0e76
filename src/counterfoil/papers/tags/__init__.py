"""TAGS and TAGS-DC (Fan et al., 2022): generated captions, word tasks, recipes and figures."""
