"""HTML and SVG: pages and drawings of what the rooms below found.

`audit_page` draws an audit's outcome, `story_report` the demo's; `drawing` and `watermark_chart` have the stories' SVG, `style`
the style sheet.
"""
