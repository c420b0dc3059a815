"""Labels completed, and questions worth asking."""
