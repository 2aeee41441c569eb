"""Things to watch: `shop`, three services on bad days (`everkeel demo`); `bad_day`, half a minute in one process."""
