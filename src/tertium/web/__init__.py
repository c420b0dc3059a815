"""What answers over HTTP: the prediction service and the review page."""
