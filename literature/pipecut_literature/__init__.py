"""The literature: planners, formats, studies and gap tables of papers, and the study of orders of actions."""
