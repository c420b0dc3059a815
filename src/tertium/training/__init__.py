"""From labels and inputs to a trained model in a run folder."""
