/* SPDX-License-Identifier: Apache-2.0
 * Everything of libte in one include. */
#ifndef LIBTE_LIBTE_H
#define LIBTE_LIBTE_H
#include "activation.h"
#include "attention.h"
#include "backend.h"
#include "base.h"
#include "dropout.h"
#include "gemm.h"
#include "info.h"
#include "linear.h"
#include "loss.h"
#include "norm.h"
#include "profile.h"
#include "quantize.h"
#include "rope.h"
#include "softmax.h"
#include "tensor.h"
#endif
