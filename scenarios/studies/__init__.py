"""Studies: published numbers beside what pipecut computes, one command each."""
