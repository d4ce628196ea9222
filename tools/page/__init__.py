"""The page of `kvc dump --html`: one file that shows a bundle, without a network.

`content.py` computes the page's content from the decoded program, and writes one file
with the content, the page's own script and style, and two libraries (`vendor/`).
"""
