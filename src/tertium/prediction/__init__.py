"""A trained model in use: probabilities, figures, explanations, export."""
