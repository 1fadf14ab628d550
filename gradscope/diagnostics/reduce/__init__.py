"""`gradscope reduce`: a part of a log as the table of its rewards."""
