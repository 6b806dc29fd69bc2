"""The guard of live clusters: looks, holds, readmissions, and what operators are told."""
