"""Model configuration: *config.pbtxt* parsed, filled in, normalised, validated."""
