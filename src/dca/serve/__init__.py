"""`dca serve`: a model behind a page in the browser and a JSON API, with corrections and refits."""
