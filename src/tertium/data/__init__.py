"""What a model is fed: images and features, found by name and turned into batches."""
