"""Finished models: the classifier, its files and its inputs."""
