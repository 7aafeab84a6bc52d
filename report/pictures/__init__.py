"""The four pictures of a run, as shapes (``report.pictures.shapes``) that a template writes as SVG."""
