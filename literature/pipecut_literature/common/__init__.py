"""What several published planners share."""
