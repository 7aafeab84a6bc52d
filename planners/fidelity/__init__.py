"""Published step times and memories beside what is predicted from one efficiency a machine."""
