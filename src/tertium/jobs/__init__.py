"""Large work in shards, on this machine or on a cluster: each shard becomes a part, written whole or not."""
