// A row-major float matmul with a constant factor and an optional bias, on OpenBLAS or on Eigen.
// Plain C functions: no header of PyTorch, so that the build takes seconds.
#include <cstdint>
#include <cstring>

#ifdef USE_OPENBLAS
#include <cblas.h>
#else
#include <Eigen/Dense>
#endif

// out[m, n] = factor * a[m, k] @ b[k, n] + bias[n] (bias may be null); b_transposed: b is [n, k].
extern "C" void matmul(const float* a, const float* b, const float* bias, float* out, int64_t m, int64_t k, int64_t n,
                       float factor, int b_transposed) {
    if (bias != nullptr)
        for (int64_t i = 0; i < m; ++i) std::memcpy(out + i * n, bias, sizeof(float) * n);
#ifdef USE_OPENBLAS
    cblas_sgemm(CblasRowMajor, CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans, m, n, k, factor, a, k, b,
                b_transposed ? k : n, bias != nullptr ? 1.0f : 0.0f, out, n);
#else
    using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    Eigen::Map<const Matrix> left(a, m, k);
    Eigen::Map<Matrix> result(out, m, n);
    if (bias == nullptr) result.setZero();
    if (b_transposed)
        result.noalias() += factor * left * Eigen::Map<const Matrix>(b, n, k).transpose();
    else
        result.noalias() += factor * left * Eigen::Map<const Matrix>(b, k, n);
#endif
}
