"""Is the platform there? Pure judgement of releases and probes; the stages at the end only collect what it needs."""
