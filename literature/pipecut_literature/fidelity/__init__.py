"""Published runs as instances with plans: their step times and memories beside those of pipecut."""
