idx floor_div(idx a, idx b) { idx q = a / b; return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q; }
idx floor_mod(idx a, idx b) { idx r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
idx lesser(idx a, idx b) { return a < b ? a : b; }
idx greater(idx a, idx b) { return a > b ? a : b; }
