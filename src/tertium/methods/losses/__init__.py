"""What the losses of several methods share."""
