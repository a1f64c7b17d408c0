"""What people hold in a notebook: views and magics."""
