"""What stands in the place of transformers' attention, masks and experts."""
