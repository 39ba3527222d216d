"""A few flights in the form of the data set."""

import pyarrow as pa

from demo.dataset import parse

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)
LATE = "2013,1,2,NA,1630,NA,NA,1815,NA,EV,4308,N18120,EWR,RDU,NA,416,16,30,2013-01-02T21:00:00Z"
SECOND = "2013,1,1,533,529,4,850,830,20,UA,1714,N24211,LGA,IAH,227,1416,5,29,2013-01-01T10:00:00Z"
THIRD = "2013,1,1,542,540,2,923,850,33,AA,1141,NA,JFK,MIA,160,1089,5,40,2013-01-01T10:00:00Z"
FIRST = "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"


def csv_text(*lines: str) -> bytes:
    """Return a flights.csv of *lines*."""
    return "\n".join([HEADER, *lines, ""]).encode()


def flights() -> pa.Table:
    """Return four flights: of UA, UA, AA and EV."""
    return parse(csv_text(LATE, SECOND, THIRD, FIRST))
