"""The files of the deployment."""
