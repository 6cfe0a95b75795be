// The tile instructions of AMX in plain C, for machines without them: included ahead of generated kernels by tests.
static __thread struct { unsigned char rows, data[16][64]; } fb_tiles[8];
static inline float fb_wide_half(unsigned short x) {
  unsigned bits = (unsigned)x << 16;
  float y;
  __builtin_memcpy(&y, &bits, 4);
  return y;
}
static void fb_tile_config(const unsigned char* c) {
  for (int t = 0; t < 8; t++) {
    fb_tiles[t].rows = c[48 + t];
    __builtin_memset(fb_tiles[t].data, 0, 1024);
    if (c[0] != 1 || c[16 + 2 * t] != 64 || c[48 + t] > 16) __builtin_trap();
  }
}
static void fb_tile_copy(int t, void* p, long stride, bool load) {
  for (int r = 0; r < 16; r++) {
    char* const row = (char*)p + r * stride;
    if (r >= fb_tiles[t].rows) { if (load) __builtin_memset(fb_tiles[t].data[r], 0, 64); }
    else if (load) __builtin_memcpy(fb_tiles[t].data[r], row, 64);
    else __builtin_memcpy(row, fb_tiles[t].data[r], 64);
  }
}
enum { bssd, busd, bf16ps };
static void fb_tile_dot(int op, int c, int a, int b) {
  for (int m = 0; m < fb_tiles[c].rows; m++)
    for (int n = 0; n < 16; n++)
      for (int k = 0; k < 16; k++) {
        void* const to = fb_tiles[c].data[m] + 4 * n;
        const unsigned char *x = fb_tiles[a].data[m] + 4 * k, *y = fb_tiles[b].data[k] + 4 * n;
        int sum;
        float total;
        __builtin_memcpy(&sum, to, 4);
        __builtin_memcpy(&total, to, 4);
        for (int i = 0; i < 4; i++) sum += (op == bssd ? (signed char)x[i] : x[i]) * (signed char)y[i];
        for (int i = 0; i < 4; i += 2)
          total += fb_wide_half(x[i] | x[i + 1] << 8) * fb_wide_half(y[i] | y[i + 1] << 8);
        if (op == bf16ps) __builtin_memcpy(to, &total, 4);
        else __builtin_memcpy(to, &sum, 4);
      }
}
#define FB_TILE_CONFIG(p) fb_tile_config(p)
#define FB_TILE_RELEASE()
#define FB_TILE_ZERO(t) __builtin_memset(fb_tiles[t].data, 0, 1024)
#define FB_TILE_LOAD(t, p, s) fb_tile_copy(t, (void*)(p), s, true)
#define FB_TILE_STORE(t, p, s) fb_tile_copy(t, p, s, false)
#define FB_TILE_DOT(op, c, a, b) fb_tile_dot(op, c, a, b)
