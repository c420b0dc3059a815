"""HTTP servers: the prediction service and the review page."""
