"""Read a model's folder and code: settings, tasks, weights, pictures."""
