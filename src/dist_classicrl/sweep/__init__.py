"""Many trainings: what their scores say of the settings that they were made with."""
