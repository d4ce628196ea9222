"""The page of `kvc dump --html`: one file that shows a bundle, without a network.

`content.py` tells what is on it, from the decoded program, and puts that, the page's
own script and style, and two libraries (`vendor/`) into one file.
"""
