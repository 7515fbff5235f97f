"""Spark as a Runner. The only home of pyspark."""
