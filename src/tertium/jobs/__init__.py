"""Large work in parts, on this machine or on several."""
