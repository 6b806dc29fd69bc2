"""HTML and SVG: reports and drawings of what the rooms below found."""
