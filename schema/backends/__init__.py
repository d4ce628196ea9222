"""What backends take, each as one list that both of its halves read.

Ahead of time a backend's list chooses nodes; at run time it refuses a block with
anything else. Nothing here needs a backend's library, or torch.
"""
