"""`python -m magneto report`: what TORCH_TRACE wrote, as one HTML file.

log.py     the files of a TORCH_TRACE folder -> records
model.py   records -> what the page shows, as plain lists and dicts
source.py  the parts of the program's text that the graphs came from
page.py    that data, in one file with its style and script (page/)
command.py the command line, and --live
"""
