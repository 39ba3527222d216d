"""Makes the lag of any streaming query visible: commits what the query has finished."""
