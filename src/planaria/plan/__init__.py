"""The plan, and how plans are found. Called, the package is the public function: `planaria.plan(job)`."""
