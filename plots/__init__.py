"""Figures: each function draws what it is given, and needs nothing of a run but its tables.

style, names       one look, and short names of kernels
save, figure_file  files with the numbers beside them, and their formats
*_figures          by what they show: bursts, lanes, phases, schedules, one run, a layer, topologies, sweeps and studies,
                   shapes, differences, what was measured, the paper
html_page          one HTML page that needs nothing else
traces             traces for Perfetto, and simulated beside measured ones
"""
