"""What a model's folder and code say: settings, tasks, weights, pictures."""
