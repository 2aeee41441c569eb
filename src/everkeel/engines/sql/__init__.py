"""The one place that runs SQL: statements are made purely, and run on whatever connection the caller has."""
