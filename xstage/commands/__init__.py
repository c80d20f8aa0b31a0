"""Commands of `xstage` and their options: each calls one public function and shows its answer."""
