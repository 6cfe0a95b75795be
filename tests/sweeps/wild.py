"""Small models of many packages, with random weights: right against float64? In how many graphs, beside torch.compile's?

    python tests/sweeps/wild.py [--package timm] [--results FILE] [--markdown docs/wild.md] [--minutes 60]

A process imports a package and forks one for each model, with limits of time and memory; results are kept in FILE, so
that a sweep goes on where it was ended. A row is an expression that makes a model and its arguments.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.metadata
import json
import os
import pkgutil
import platform
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 400
"""Seconds that one model may take."""
MEMORY = 10 << 30
"""Bytes that one model may take."""
R = torch.randn
BOXES = torch.rand(20, 2, generator=torch.Generator().manual_seed(0)).repeat(1, 2) * 20 + torch.tensor([0.0, 0, 9, 7])


def image(size: int = 64, batch: int = 1, channels: int = 3) -> tuple[torch.Tensor, ...]:
    """A batch of pictures."""
    return (R(batch, channels, size, size),)


def rows(template: str, *names: str) -> dict[str, str]:
    """A row for each name."""
    return {name: template.replace("NAME", name) for name in names}


class Call(nn.Module):
    """A function as a model."""

    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


class Mlp(nn.Module):
    """What adapters and quantizers change."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.second(torch.nn.functional.gelu(self.first(x)))))


class Mlp64(nn.Sequential):
    """A field of 64 numbers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 64))


def seen(detector: nn.Module, wide: bool = False) -> nn.Module:
    """A detector whose random weights leave sums in the range of numbers; `wide`: and that don't lose the picture.

    SSDlite's own weights do: most neighbors among its scores differ by 2e-15, so that rounding chooses the boxes.
    """
    with torch.no_grad():
        for part in detector.modules():
            if wide and isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight)
            if getattr(part, "running_var", None) is not None:
                part.running_mean.normal_(0, 0.1)
                part.running_var.uniform_(0.7, 1.5)
    return detector.eval()


_TIMM = (
    "resnet10t resnet18 resnext26ts seresnext26ts ecaresnet26t skresnet18 res2net50_14w_8s mobilenetv2_050 mobilenetv3_small_050 mobilenetv4_conv_small_050 "
    "efficientnet_lite0 mnasnet_small tinynet_e fbnetc_100 ghostnet_050 ghostnetv2_100 semnasnet_075 spnasnet_100 hardcorenas_a rexnetr_200 regnetx_002 regnety_002 "
    "regnetz_005 densenet121 dla34 dla46_c vgg11 repvgg_a0 vovnet39a hrnet_w18_small inception_v3 xception41 cspresnet50 darknet17 selecsls42b nfnet_f0 dm_nfnet_f0 "
    "gernet_s lcnet_050 convnext_atto convnextv2_atto edgenext_xx_small mobilevit_xxs mobilevitv2_050 mobileone_s0 fastvit_t8 repvit_m0_9 efficientformer_l1 efficientformerv2_s0 "
    "efficientvit_b0 efficientvit_m0 poolformer_s12 poolformerv2_s12 caformer_s18 convformer_s18 starnet_s1 shvit_s1 lsnet_t tiny_vit_5m_224 vit_tiny_patch16_224 deit_tiny_patch16_224 "
    "deit3_small_patch16_224 cait_xxs24_224 crossvit_tiny_240 swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 levit_128s levit_conv_128s visformer_tiny pit_ti_224 pvt_v2_b0 "
    "twins_svt_small xcit_nano_12_p16_224 mixer_s32_224 resmlp_12_224 gmlp_ti16_224 convmixer_768_32 coat_tiny coatnet_pico_rw_224 maxvit_pico_rw_256 tnt_s_legacy_patch16_224 beit_base_patch16_224 "
    "eva02_tiny_patch14_224 volo_d1_224 focalnet_tiny_srf gcvit_xxtiny davit_tiny hiera_tiny_224 inception_next_atto nest_tiny sequencer2d_s mambaout_femto nextvit_small hgnet_tiny hgnetv2_b0 haloregnetz_b botnet26t_256 lambda_resnet26t bat_resnext26ts rdnet_tiny csatv2 test_vit test_resnet test_efficientnet"
).split()
_FIXED = "vit deit cait crossvit swin levit visformer pit twins xcit mixer resmlp gmlp coat maxvit tnt beit eva volo focal gcvit hiera nest halo botnet lambda bat tiny_vit efficientvit_m nextvit mambaout test efficientformer csat sequencer".split()
_GNN = "GCNConv SAGEConv GraphConv GATConv GATv2Conv TransformerConv TAGConv ARMAConv SGConv SSGConv ChebConv LEConv ClusterGCNConv GENConv FiLMConv SuperGATConv EGConv GeneralConv ResGatedGraphConv MFConv LGConv AntiSymmetricConv FeaStConv".split()
_WIDTHS = {
    "SGConv": "8, 16",
    "SSGConv": "8, 16, 0.5",
    "ChebConv": "8, 16, 3",
    "LGConv": "",
    "AntiSymmetricConv": "8",
    "EGConv": "8, 16",
}
_EDGES = "torch.tensor([[0, 1, 1, 2, 3, 4, 5, 0], [1, 0, 2, 1, 4, 3, 0, 5]])"
_UNET = "block_out_channels=(32, 64), layers_per_block=1"
_T = "num_attention_heads=2, attention_head_dim=16, num_layers=2"
CASES: dict[str, dict[str, str]] = {
    "timm": {n: f"timm.create_model('{n}', pretrained=False, num_classes=10), image(P.get(next((k for k in P if '{n}'.startswith(k)), ''), 224 if any('{n}'.startswith(f) for f in F) else 96))" for n in _TIMM},
    "torchvision": {
        **rows("M.NAME(weights=None, num_classes=10).eval(), image(96)", *"alexnet vgg11 resnet18 resnet50 resnext50_32x4d wide_resnet50_2 densenet121 squeezenet1_0 squeezenet1_1 mobilenet_v2 mobilenet_v3_small mobilenet_v3_large mnasnet0_5 shufflenet_v2_x0_5 efficientnet_b0 efficientnet_v2_s convnext_tiny regnet_y_400mf regnet_x_400mf".split()),
        **rows("M.NAME(weights=None, num_classes=10, init_weights=False).eval(), image(128)", "googlenet", "inception_v3"),
        **rows("M.NAME(weights=None, num_classes=10).eval(), image(224)", *"vit_b_32 swin_t swin_v2_t maxvit_t".split()),
        **rows("M.segmentation.NAME(weights=None, weights_backbone=None, num_classes=5).eval(), image(64)", *"fcn_resnet50 deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large".split()),
        **rows("M.video.NAME(weights=None, num_classes=5).eval(), (R(1, 3, 4, 48, 48),)", "r3d_18", "mc3_18", "r2plus1d_18"),
        **rows("M.video.NAME(weights=None, num_classes=5).eval(), (R(1, 3, 16, 224, 224),)", "mvit_v1_b", "mvit_v2_s", "s3d"),
        "swin3d_t": "M.video.swin3d_t(weights=None, num_classes=5).eval(), (R(1, 3, 4, 64, 64),)",
        "raft_small": "M.optical_flow.raft_small(weights=None).eval(), (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128))",
        **rows("seen(M.detection.NAME(weights=None, weights_backbone=None, num_classes=5, min_size=96, max_size=128)), ([torch.rand(3, 96, 80), torch.rand(3, 72, 100)],)", *"fasterrcnn_resnet50_fpn fasterrcnn_mobilenet_v3_large_320_fpn maskrcnn_resnet50_fpn keypointrcnn_resnet50_fpn".split()),
        "retinanet_resnet50_fpn": "seen(M.detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5, min_size=96, max_size=128, score_thresh=0.0)), ([torch.rand(3, 96, 80), torch.rand(3, 72, 100)],)",
        "fcos_resnet50_fpn": "seen(M.detection.fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5, min_size=96, max_size=128, score_thresh=0.0)), ([torch.rand(3, 96, 80), torch.rand(3, 72, 100)],)",
        "ssdlite320_mobilenet_v3_large": "seen(M.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5, detections_per_img=50), wide=True), ([torch.rand(3, 96, 80), torch.rand(3, 72, 100)],)",
        "nms": "Call(torchvision.ops.nms), (BOXES, torch.rand(20), 0.5)",
        "batched_nms": "Call(torchvision.ops.batched_nms), (BOXES, torch.rand(20), torch.arange(20) % 3, 0.5)",
        "box_iou": "Call(torchvision.ops.box_iou), (BOXES, BOXES[:7])",
        **rows("Call(torchvision.ops.NAME), (BOXES, BOXES.flip(0) + 1)", "generalized_box_iou_loss", "complete_box_iou_loss", "distance_box_iou_loss"),
        "roi_align": "torchvision.ops.RoIAlign(4, 0.5, 2), (R(1, 8, 32, 32), [BOXES])",
        "roi_pool": "torchvision.ops.RoIPool(4, 0.5), (R(1, 8, 32, 32), [BOXES])",
        "DeformConv2d": "torchvision.ops.DeformConv2d(4, 8, 3), (R(1, 4, 12, 12), R(1, 18, 10, 10))",
        "sigmoid_focal_loss": "Call(torchvision.ops.sigmoid_focal_loss), (R(4, 5), torch.rand(4, 5).round())",
        "FeaturePyramidNetwork": "torchvision.ops.FeaturePyramidNetwork([8, 16], 8), ({'a': R(1, 8, 16, 16), 'b': R(1, 16, 8, 8)},)",
    },
    "torchaudio": {
        "Wav2Vec2Model": "AM.wav2vec2_model('layer_norm', [(16, 10, 5), (16, 3, 2)], False, 32, 0.0, 16, 2, 2, 2, 0.0, 64, 0.0, 0.0, False, 0.0, 8), (R(1, 800),)",
        "HuBERTPretrain": "AM.wav2vec2_model('group_norm', [(16, 10, 5), (16, 3, 2)], False, 32, 0.0, 16, 2, 2, 2, 0.0, 64, 0.0, 0.0, True, 0.0, 8), (R(1, 800),)",
        "WavLM": "AM.wavlm_model('group_norm', [(16, 10, 5), (16, 3, 2)], False, 32, 0.0, 16, 2, 2, 2, 32, 64, 0.0, 64, 0.0, 0.0, False, 0.0, 8), (R(1, 800),)",
        "Conformer": "AM.Conformer(16, 2, 32, 2, 7), (R(2, 10, 16), torch.tensor([10, 8]))",
        "Emformer": "AM.Emformer(16, 2, 32, 2, 4, right_context_length=1), (R(2, 9, 16), torch.tensor([8, 7]))",
        "ConvTasNet": "AM.ConvTasNet(2, 16, 16, 3, 8, 16, 2, 2), (R(1, 1, 400),)",
        "DeepSpeech": "AM.DeepSpeech(16, n_hidden=32, n_class=5), (R(1, 1, 8, 16),)",
        "Wav2Letter": "AM.Wav2Letter(num_classes=5, num_features=8, input_type='mfcc'), (R(1, 8, 200),)",
        "WaveRNN": "AM.WaveRNN([2, 2], 4, 4, 4, n_rnn=16, n_fc=16, kernel_size=3, n_freq=16, n_hidden=16, n_output=16), (R(1, 1, 24), R(1, 1, 16, 8))",
        "MelResNet": "AM.wavernn.MelResNet(2, 16, 16, 16, 3), (R(1, 16, 20),)",
        "HDemucs": "AM.HDemucs(['a', 'b'], channels=8, depth=4, nfft=256), (R(1, 2, 4096),)",
        "SquimObjective": "AM.squim_objective_model(16, 8, 16, 1, 16, 1, 'LSTM', 8), (R(1, 1600),)",
        "RNNTJoiner": "AM.rnnt._Joiner(16, 10), (R(1, 5, 16), torch.tensor([5]), R(1, 3, 16), torch.tensor([3]))",
        **{n: f"AT.{n}({a}), (R(1, {length}),)" for n, a, length in (("Spectrogram", "128", 800), ("MelSpectrogram", "16000, 128, n_mels=16", 800), ("MFCC", "16000, 13, melkwargs=dict(n_fft=256, n_mels=16)", 800), ("LFCC", "16000, n_lfcc=13, speckwargs=dict(n_fft=128)", 800), ("AmplitudeToDB", "", 50), ("MuLawEncoding", "", 50), ("Resample", "16000, 8000", 400), ("ComputeDeltas", "", 50), ("Vol", "0.5", 50), ("Fade", "10, 10", 50), ("SpectralCentroid", "16000, 128", 800), ("Preemphasis", "", 50), ("Deemphasis", "", 50))},
        "InverseMelScale": "AT.InverseMelScale(33, 8), (R(1, 8, 10).abs(),)",
        "GriffinLim": "AT.GriffinLim(64, 4, rand_init=False), (R(1, 33, 10).abs(),)",
        **rows("Call(torchaudio.functional.NAME), (R(1, 200), 16000, 800.0)", "lowpass_biquad", "highpass_biquad", "bandpass_biquad"),
    },
    "segmentation_models_pytorch": {
        **rows("SM.NAME('resnet18', encoder_weights=None, classes=3), image(64)", *"Unet UnetPlusPlus MAnet Linknet FPN PSPNet DeepLabV3 DeepLabV3Plus UPerNet Segformer".split()),
        "PAN": "SM.PAN('resnet18', encoder_weights=None, classes=3), image(128)",
        **{f"Unet of {n}": f"SM.Unet('{n}', encoder_weights=None, classes=3, encoder_depth=3, decoder_channels=(32, 16, 8)), image(64)" for n in "vgg11 densenet121 mobilenet_v2 efficientnet-b0 mit_b0 timm-regnetx_002 mobileone_s0".split()},
        **rows("SM.losses.NAME('multilabel'), (R(2, 3, 8, 8), torch.rand(2, 3, 8, 8).round())", "DiceLoss", "JaccardLoss", "TverskyLoss"),
        **rows("SM.losses.NAME, (R(2, 3, 8, 8), torch.rand(2, 3, 8, 8).round())", "SoftBCEWithLogitsLoss()", "MCCLoss()"),
    },
    "gpytorch": {
        **rows("Call(lambda x, k=gpytorch.kernels.NAME: k(x).to_dense()), (R(6, 3),)", *"RBFKernel() MaternKernel(2.5) MaternKernel(0.5) PeriodicKernel() RQKernel() LinearKernel() PolynomialKernel(2) CosineKernel() ScaleKernel(gpytorch.kernels.RBFKernel())".split()),
    },
    "torchdiffeq": {
        **rows("Call(lambda x, f=Mlp64(): torchdiffeq.odeint(lambda t, y: f(y), x, torch.linspace(0, 1, 4).to(x.dtype), method='NAME')), (R(2, 64),)", "euler", "midpoint", "rk4", "heun3", "explicit_adams"),
    },
    "pytorch_msssim": {
        "ssim": "pytorch_msssim.SSIM(data_range=1.0, channel=3), (torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 32))",
        "ms_ssim": "pytorch_msssim.MS_SSIM(data_range=1.0, channel=1, win_size=3), (torch.rand(1, 1, 64, 64), torch.rand(1, 1, 64, 64))",
    },
    "transformers": {},
    "diffusers": {
        "UNet2DModel": f"D.UNet2DModel(sample_size=16, {_UNET}, down_block_types=('DownBlock2D', 'AttnDownBlock2D'), up_block_types=('AttnUpBlock2D', 'UpBlock2D'), norm_num_groups=8), (R(1, 3, 16, 16), 3)",
        "UNet2DConditionModel": f"D.UNet2DConditionModel(sample_size=16, {_UNET}, cross_attention_dim=32, down_block_types=('DownBlock2D', 'CrossAttnDownBlock2D'), up_block_types=('CrossAttnUpBlock2D', 'UpBlock2D'), norm_num_groups=8), (R(1, 4, 16, 16), 3, R(1, 5, 32))",
        "ControlNetModel": f"D.ControlNetModel({_UNET}, cross_attention_dim=32, down_block_types=('DownBlock2D', 'CrossAttnDownBlock2D'), norm_num_groups=8, conditioning_embedding_out_channels=(16, 32)), (R(1, 4, 16, 16), 3, R(1, 5, 32), R(1, 3, 32, 32))",
        "UNet1DModel": "D.UNet1DModel(block_out_channels=(32, 64), extra_in_channels=64, in_channels=2, out_channels=2, down_block_types=('DownBlock1DNoSkip', 'AttnDownBlock1D'), up_block_types=('AttnUpBlock1D', 'UpBlock1DNoSkip')), (R(1, 2, 64), 3)",
        "UNet3DConditionModel": f"D.UNet3DConditionModel({_UNET}, cross_attention_dim=32, down_block_types=('CrossAttnDownBlock3D', 'DownBlock3D'), up_block_types=('UpBlock3D', 'CrossAttnUpBlock3D'), norm_num_groups=8, attention_head_dim=8), (R(1, 4, 2, 8, 8), 3, R(1, 5, 32))",
        "AutoencoderKL": "D.AutoencoderKL(block_out_channels=(32, 64), down_block_types=('DownEncoderBlock2D',) * 2, up_block_types=('UpDecoderBlock2D',) * 2, norm_num_groups=8), image(32)",
        "AutoencoderTiny": "D.AutoencoderTiny(encoder_block_out_channels=(16, 16), decoder_block_out_channels=(16, 16), num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)), image(32)",
        "VQModel": "D.VQModel(block_out_channels=(32, 64), down_block_types=('DownEncoderBlock2D',) * 2, up_block_types=('UpDecoderBlock2D',) * 2, norm_num_groups=8, num_vq_embeddings=16), image(16)",
        "DiTTransformer2DModel": f"D.DiTTransformer2DModel({_T}, in_channels=4, out_channels=8, sample_size=8, norm_num_groups=8), (R(1, 4, 8, 8), torch.tensor([3]), torch.tensor([1]))",
        "PixArtTransformer2DModel": f"D.PixArtTransformer2DModel({_T}, in_channels=4, out_channels=8, sample_size=8, cross_attention_dim=32, caption_channels=32), (R(1, 4, 8, 8), R(1, 5, 32), torch.tensor([3])), dict(added_cond_kwargs={{'resolution': None, 'aspect_ratio': None}})",
        "SD3Transformer2DModel": f"D.SD3Transformer2DModel({_T}, sample_size=8, in_channels=4, joint_attention_dim=32, caption_projection_dim=32, pooled_projection_dim=64, out_channels=4), (R(1, 4, 8, 8), R(1, 5, 32), R(1, 64), torch.tensor([3]))",
        "Transformer2DModel": "D.Transformer2DModel(num_attention_heads=2, attention_head_dim=16, in_channels=32, norm_num_groups=8, cross_attention_dim=32), (R(1, 32, 8, 8), R(1, 5, 32))",
        "PriorTransformer": f"D.PriorTransformer({_T}, embedding_dim=16, num_embeddings=7, additional_embeddings=4), (R(1, 16), 3), dict(proj_embedding=R(1, 16), encoder_hidden_states=R(1, 7, 16))",
        "FluxTransformer2DModel": "D.FluxTransformer2DModel(in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8)), (R(1, 16, 4), R(1, 5, 32), R(1, 32), torch.tensor([0.5]), torch.zeros(16, 3), torch.zeros(5, 3))",
        "T2IAdapter": "D.T2IAdapter(in_channels=3, channels=(32, 64), num_res_blocks=1, downscale_factor=2, adapter_type='full_adapter'), image(32)",
        "LTXVideoTransformer3DModel": "D.LTXVideoTransformer3DModel(in_channels=8, out_channels=8, num_attention_heads=2, attention_head_dim=16, cross_attention_dim=32, num_layers=1, caption_channels=16), (R(1, 32, 8), R(1, 5, 16), torch.tensor([3])), dict(encoder_attention_mask=torch.ones(1, 5), num_frames=2, height=4, width=4)",
        **rows("Call(lambda x, t, s=D.NAME(num_train_timesteps=10): s.add_noise(x, x * 2, t)), (R(1, 4, 8, 8), torch.tensor([3]))", "DDPMScheduler", "DDIMScheduler"),
    },
    "torch_geometric": {
        **{n: f"G.{n}({_WIDTHS.get(n, '8, 16')}), (R(6, 8), {_EDGES})" for n in _GNN},
        "GINConv": f"G.GINConv(nn.Linear(8, 16)), (R(6, 8), {_EDGES})",
        **rows(f"G.NAME(8, 16, 2, 4), (R(6, 8), {_EDGES})", "GCN", "GraphSAGE", "GIN", "GAT", "EdgeCNN"),
        **rows("G.NAME(), (R(6, 8), torch.tensor([0, 0, 0, 1, 1, 1]))", "MeanAggregation", "SumAggregation", "MaxAggregation", "SoftmaxAggregation", "VarAggregation", "StdAggregation", "MedianAggregation"),
        **rows("G.NAME(8), (R(6, 8),)", "BatchNorm", "LayerNorm", "GraphNorm", "InstanceNorm"),
        "global_mean_pool": "Call(G.global_mean_pool), (R(6, 8), torch.tensor([0, 0, 0, 1, 1, 1]))",
        "EdgeConv": f"G.EdgeConv(nn.Linear(16, 16)), (R(6, 8), {_EDGES})",
        "GINEConv": f"G.GINEConv(nn.Linear(8, 16)), (R(6, 8), {_EDGES}, R(8, 8))",
        "NNConv": f"G.NNConv(8, 4, nn.Linear(3, 32)), (R(6, 8), {_EDGES}, R(8, 3))",
        "CGConv": f"G.CGConv(8, 3), (R(6, 8), {_EDGES}, R(8, 3))",
        "GMMConv": f"G.GMMConv(8, 16, 2, 3), (R(6, 8), {_EDGES}, R(8, 2))",
        "GATConv with edges": f"G.GATConv(8, 16, 2, edge_dim=3), (R(6, 8), {_EDGES}, R(8, 3))",
        "GatedGraphConv": f"G.GatedGraphConv(16, 2), (R(6, 8), {_EDGES})",
        "APPNP": f"G.APPNP(3, 0.1), (R(6, 8), {_EDGES})",
        "GCN2Conv": f"G.GCN2Conv(8, 0.1), (R(6, 8), R(6, 8), {_EDGES})",
        "AGNNConv": f"G.AGNNConv(), (R(6, 8), {_EDGES})",
        "PNAConv": f"G.PNAConv(8, 16, ['mean', 'max', 'std'], ['identity', 'amplification'], torch.tensor([0, 4, 2])), (R(6, 8), {_EDGES})",
        "RGCNConv": f"G.RGCNConv(8, 16, 3), (R(6, 8), {_EDGES}, torch.arange(8) % 3)",
        "FastRGCNConv": f"G.FastRGCNConv(8, 16, 3), (R(6, 8), {_EDGES}, torch.arange(8) % 3)",
        "PointNetConv": f"G.PointNetConv(nn.Linear(11, 16)), (R(6, 8), R(6, 3), {_EDGES})",
        "SignedConv": f"G.SignedConv(8, 16, True), (R(6, 8), {_EDGES}, {_EDGES})",
        "HypergraphConv": f"G.HypergraphConv(8, 16), (R(6, 8), {_EDGES})",
        "DNAConv": f"G.DNAConv(16, 2), (R(6, 3, 16), {_EDGES})",
        "SchNet": "G.SchNet(16, 16, 2, 8, 5.0, lambda p, b: (torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]), (p[[0, 1, 2, 3]] - p[[1, 0, 3, 2]]).norm(dim=-1)), readout='add'), (torch.tensor([1, 6, 8, 1]), R(4, 3), torch.zeros(4, dtype=torch.long))",
        "DeepSets": "G.aggr.DeepSetsAggregation(nn.Linear(8, 16), nn.Linear(16, 4)), (R(6, 8), torch.tensor([0, 0, 0, 1, 1, 1]))",
        "AttentionalAggregation": "G.aggr.AttentionalAggregation(nn.Linear(8, 1)), (R(6, 8), torch.tensor([0, 0, 0, 1, 1, 1]))",
        "TopKPooling": f"G.TopKPooling(8), (R(6, 8), {_EDGES})",
        "GraphUNet": f"G.GraphUNet(8, 16, 4, 2), (R(6, 8), {_EDGES})",
        "DenseGCNConv": "G.DenseGCNConv(8, 16), (R(2, 6, 8), torch.rand(2, 6, 6).round())",
        "dense_diff_pool": "Call(G.dense_diff_pool), (R(2, 6, 8), torch.rand(2, 6, 6).round(), R(2, 6, 3))",
        "Sequential": f"G.Sequential('x, e', [(G.SAGEConv(8, 16), 'x, e -> x'), nn.ReLU(), (G.SAGEConv(16, 4), 'x, e -> x')]), (R(6, 8), {_EDGES})",
        "GAE": "G.InnerProductDecoder(), (R(6, 8), torch.tensor([[0, 1], [1, 2]]))",
    },
    "sentence_transformers": {
        **rows("S.Pooling(32, pooling_mode='NAME'), ({'token_embeddings': R(2, 6, 32), 'attention_mask': torch.ones(2, 6, dtype=torch.long)},)", "mean", "max", "cls", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"),
        "Dense": "S.Dense(32, 16), ({'sentence_embedding': R(2, 32)},)",
        "Normalize": "S.Normalize(), ({'sentence_embedding': R(2, 32)},)",
        "LayerNorm": "S.LayerNorm(32), ({'sentence_embedding': R(2, 32)},)",
        "Dropout": "S.Dropout(0.2).eval(), ({'sentence_embedding': R(2, 32)},)",
        "LSTM": "S.LSTM(32, 16), ({'token_embeddings': R(2, 6, 32), 'attention_mask': torch.ones(2, 6, dtype=torch.long), 'sentence_lengths': torch.tensor([6, 6])},)",
        "CNN": "S.CNN(32, 16), ({'token_embeddings': R(2, 6, 32)},)",
        "pipeline": "nn.Sequential(S.Pooling(32), S.Dense(32, 16), S.Normalize()), ({'token_embeddings': R(2, 6, 32), 'attention_mask': torch.ones(2, 6, dtype=torch.long)},)",
        "cos_sim": "Call(st.util.cos_sim), (R(3, 8), R(4, 8))",
        "dot_score": "Call(st.util.dot_score), (R(3, 8), R(4, 8))",
    },
    "open_clip": {
        "CLIP": "O.CLIP(16, dict(image_size=32, layers=2, width=64, patch_size=8, head_width=32), dict(context_length=8, vocab_size=50, width=32, heads=2, layers=2)), (image(32)[0], torch.randint(0, 50, (1, 8)))",
        "CLIP of a ResNet": "O.CLIP(16, dict(image_size=32, layers=(1, 1, 1, 1), width=8), dict(context_length=8, vocab_size=50, width=32, heads=2, layers=1)), (image(32)[0], torch.randint(0, 50, (1, 8)))",
        "CustomTextCLIP": "O.CustomTextCLIP(16, dict(image_size=32, layers=2, width=64, patch_size=8, head_width=32), dict(context_length=8, vocab_size=50, width=32, heads=2, layers=2)), (image(32)[0], torch.randint(0, 50, (1, 8)))",
"VisionTransformer": "O.transformer.VisionTransformer(32, 8, 64, 2, 2, 4.0), image(32)",
        "ModifiedResNet": "O.modified_resnet.ModifiedResNet((1, 1, 1, 1), 16, 2, 32, 8), image(32)",
        "TextTransformer": "O.transformer.TextTransformer(8, 50, 32, 2, 2), (torch.randint(0, 50, (1, 8)),)",
        "ClipLoss": "O.ClipLoss(), (R(4, 16), R(4, 16), torch.tensor(2.0))",
        "SigLipLoss": "O.loss.SigLipLoss(), (R(4, 16), R(4, 16), torch.tensor(2.0), torch.tensor(0.1))",
    },
    "lightning": {
        "BoringModel": "L.pytorch.demos.boring_classes.BoringModel(), (R(4, 32),)",
        "training_step": "Call(lambda x, m=L.pytorch.demos.boring_classes.BoringModel(): m.training_step(x, 0)['loss']), (R(4, 32),)",
        "Transformer": "L.pytorch.demos.transformer.Transformer(50, ninp=32, nhead=2, nhid=32, nlayers=2).eval(), (torch.randint(0, 50, (1, 8)), torch.randint(0, 50, (1, 8)))",
        "Fabric": "Call(lambda x, m=L.Fabric(accelerator='cpu', devices=1).setup(Mlp()): m(x)), (R(4, 64),)",
        "BoringDataModule": "L.pytorch.demos.boring_classes.DemoModel(out_dim=4), (R(4, 32),)",
    },
    "torchmetrics": rows("Call(T.NAME), (R(20).abs(), R(20).abs() + 0.1)", *"mean_squared_error mean_absolute_error r2_score explained_variance pearson_corrcoef mean_absolute_percentage_error symmetric_mean_absolute_percentage_error mean_squared_log_error concordance_corrcoef log_cosh_error signal_noise_ratio scale_invariant_signal_noise_ratio".split()),
    "peft": {
        **{n: f"P.get_peft_model(Mlp(), P.{n}(target_modules=['first', 'second']{more})), (R(4, 64),)" for n, more in {"LoraConfig": "", "LoHaConfig": ", r=4", "LoKrConfig": ", r=4", "IA3Config": ", feedforward_modules=['second']", "OFTConfig": ", oft_block_size=8", "BOFTConfig": ", boft_block_size=8", "VeraConfig": ", r=4", "HRAConfig": ", r=4", "FourierFTConfig": ", n_frequency=50", "MissConfig": ", r=8", "VBLoRAConfig": ", r=2, num_vectors=8, vector_length=32"}.items()},
        "DoRA": "P.get_peft_model(Mlp(), P.LoraConfig(target_modules=['first'], use_dora=True)), (R(4, 64),)",
        "rsLoRA": "P.get_peft_model(Mlp(), P.LoraConfig(target_modules=['first'], use_rslora=True)), (R(4, 64),)",
        "merged LoRA": "P.get_peft_model(Mlp(), P.LoraConfig(target_modules=['first'])).merge_and_unload(), (R(4, 64),)",
    },
    "torchao": {n: f"Q('{n}'), (R(4, 64),)" for n in ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig", "IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig")},
    "einops": {
        "Rearrange": "Rearrange('b c (h x) (w y) -> b (h w) (x y c)', x=4, y=4), image(32)",
        "Reduce": "Reduce('b c (h 2) (w 2) -> b c h w', 'max'), image(32)",
        "EinMix": "EinMix('b t c -> b t d', weight_shape='c d', bias_shape='d', c=8, d=16), (R(2, 3, 8),)",
        "functions": "Call(lambda x: einops.repeat(einops.reduce(einops.rearrange(x, 'b c h w -> b h w c'), 'b h w c -> b c', 'mean'), 'b c -> b c k', k=3)), image(8)",
        "einsum": "Call(lambda x, y: einops.einsum(x, y, 'b i d, b j d -> b i j')), (R(2, 3, 4), R(2, 5, 4))",
        "pack": "Call(lambda x, y: einops.pack([x, y], 'b *')[0]), (R(2, 3, 4), R(2, 5))",
        "patches": "nn.Sequential(Rearrange('b c (h p) (w q) -> b (h w) (p q c)', p=8, q=8), nn.Linear(192, 32), nn.LayerNorm(32), Reduce('b n d -> b d', 'mean')), image(32)",
    },
    "kornia": {
        **{n: f"Call(lambda x: K.{e}), (torch.rand(1, 3, 16, 16),)" for n, e in {
            "gaussian_blur2d": "filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5))", "sobel": "filters.sobel(x)", "laplacian": "filters.laplacian(x, 3)", "median_blur": "filters.median_blur(x, (3, 3))", "box_blur": "filters.box_blur(x, (3, 3))",
            "unsharp_mask": "filters.unsharp_mask(x, (3, 3), (1.5, 1.5))", "canny": "filters.canny(x)[0]", "spatial_gradient": "filters.spatial_gradient(x)", "bilateral_blur": "filters.bilateral_blur(x, (3, 3), 0.1, (1.5, 1.5))", "motion_blur": "filters.motion_blur(x, 3, 30.0, 0.5)",
            "rgb_to_hsv": "color.rgb_to_hsv(x)", "rgb_to_lab": "color.rgb_to_lab(x)", "rgb_to_grayscale": "color.rgb_to_grayscale(x)", "rgb_to_yuv": "color.rgb_to_yuv(x)", "rgb_to_hls": "color.rgb_to_hls(x)", "rgb_to_xyz": "color.rgb_to_xyz(x)", "sepia": "color.sepia(x)",
            "rotate": "geometry.transform.rotate(x, torch.tensor([30.0]))", "resize": "geometry.transform.resize(x, (8, 8))", "hflip": "geometry.transform.hflip(x)", "pyrdown": "geometry.transform.pyrdown(x)", "warp_affine": "geometry.transform.warp_affine(x, torch.eye(3)[None, :2], (16, 16))", "center_crop": "geometry.transform.center_crop(x, (8, 8))",
            "adjust_brightness": "enhance.adjust_brightness(x, 0.2)", "adjust_gamma": "enhance.adjust_gamma(x, 0.7)", "adjust_hue": "enhance.adjust_hue(x, 0.2)", "normalize": "enhance.normalize(x, torch.zeros(3), torch.ones(3))", "equalize": "enhance.equalize(x)", "posterize": "enhance.posterize(x, 3)",
            "dilation": "morphology.dilation(x, torch.ones(3, 3))", "erosion": "morphology.erosion(x, torch.ones(3, 3))", "ssim": "metrics.ssim(x, x * 0.9, 5)", "psnr": "metrics.psnr(x, x * 0.9, 1.0)", "harris": "feature.harris_response(x[:, :1])", "total_variation": "losses.total_variation(x)",
        }.items()},
    },
    "monai": {
        "UNet": "N.UNet(2, 1, 2, (8, 16, 32), (2, 2), num_res_units=1), (R(1, 1, 32, 32),)",
        "AttentionUnet": "N.AttentionUnet(2, 1, 2, (8, 16, 32), (2, 2)), (R(1, 1, 32, 32),)",
        "BasicUNet": "N.BasicUNet(2, 1, 2, (8, 8, 16, 32, 64, 8)), (R(1, 1, 32, 32),)",
        "BasicUNetPlusPlus": "N.BasicUNetPlusPlus(2, 1, 2, (8, 8, 16, 32, 64, 8)), (R(1, 1, 32, 32),)",
        "DynUNet": "N.DynUNet(2, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2]), (R(1, 1, 32, 32),)",
        "FlexibleUNet": "N.FlexibleUNet(3, 2, 'efficientnet-b0', spatial_dims=2), image(64)",
        "SegResNet": "N.SegResNet(2, 8, 1, 2), (R(1, 1, 32, 32),)",
        "SegResNetVAE": "N.SegResNetVAE((32, 32), spatial_dims=2, init_filters=8, in_channels=1), (R(1, 1, 32, 32),)",
        "UNETR": "N.UNETR(1, 2, (32, 32), 8, 48, 96, 4, spatial_dims=2), (R(1, 1, 32, 32),)",
        "SwinUNETR": "N.SwinUNETR(1, 2, feature_size=12, spatial_dims=2, depths=(1, 1, 1, 1)), (R(1, 1, 64, 64),)",
        "ViT": "N.ViT(1, (32, 32), 8, hidden_size=48, mlp_dim=96, num_layers=2, num_heads=4, spatial_dims=2, classification=True), (R(1, 1, 32, 32),)",
        "ViTAutoEnc": "N.ViTAutoEnc(1, (32, 32), 4, hidden_size=48, mlp_dim=96, num_layers=2, num_heads=4, spatial_dims=2), (R(1, 1, 32, 32),)",
        "DenseNet": "N.DenseNet(2, 1, 2, 8, 4, (2, 2)), (R(1, 1, 32, 32),)",
        "ResNet": "N.resnet10(spatial_dims=2, n_input_channels=1, num_classes=2), (R(1, 1, 32, 32),)",
        "SEResNet50": "N.SEResNet50(spatial_dims=2, in_channels=1, num_classes=2), (R(1, 1, 32, 32),)",
        "EfficientNetBN": "N.EfficientNetBN('efficientnet-b0', pretrained=False, spatial_dims=2, in_channels=1), (R(1, 1, 32, 32),)",
        "VNet": "N.VNet(2, 1, 2, dropout_dim=2), (R(1, 1, 32, 32),)",
        "HighResNet": "N.HighResNet(2, 1, 2), (R(1, 1, 16, 16),)",
        "RegUNet": "N.RegUNet(2, 1, 8, 2), (R(1, 1, 32, 32),)",
        "AutoEncoder": "N.AutoEncoder(2, 1, 1, (4, 8), (2, 2)), (R(1, 1, 32, 32),)",
        "Regressor": "N.Regressor((1, 32, 32), (1,), (4, 8), (2, 2)), (R(1, 1, 32, 32),)",
        "Discriminator": "N.Discriminator((1, 32, 32), (4, 8), (2, 2)), (R(1, 1, 32, 32),)",
        "Generator": "N.Generator((8,), (4, 8, 8), (8, 4), (2, 2)), (R(1, 8),)",
        "FullyConnectedNet": "N.FullyConnectedNet(8, 2, (16, 16)), (R(2, 8),)",
        "TopologySearch UNet 3d": "N.UNet(3, 1, 2, (4, 8), (2,)), (R(1, 1, 16, 16, 16),)",
        "DiceLoss": "ML.DiceLoss(sigmoid=True), (R(2, 1, 8, 8), torch.rand(2, 1, 8, 8).round())",
        "FocalLoss": "ML.FocalLoss(), (R(2, 1, 8, 8), torch.rand(2, 1, 8, 8).round())",
        "TverskyLoss": "ML.TverskyLoss(sigmoid=True), (R(2, 1, 8, 8), torch.rand(2, 1, 8, 8).round())",
        "SSIMLoss": "ML.SSIMLoss(2), (torch.rand(1, 1, 16, 16), torch.rand(1, 1, 16, 16))",
    },
    "vit_pytorch": {
        "ViT": "V.ViT(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=64), image(32)",
        "SimpleViT": "V.SimpleViT(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=64), image(32)",
        "DeepViT": "V.deepvit.DeepViT(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=64), image(32)",
        "CaiT": "V.cait.CaiT(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, cls_depth=1, heads=2, mlp_dim=64).eval(), image(32)",
        "CCT": "V.cct.CCT(img_size=(32, 32), embedding_dim=32, n_conv_layers=1, num_layers=2, num_heads=2, mlp_ratio=2.0, num_classes=5).eval(), image(32)",
        "MobileViT": "V.mobile_vit.MobileViT(image_size=(64, 64), dims=[32, 40, 48], channels=[8, 8, 16, 16, 24, 24, 32, 32, 40, 40, 64], num_classes=5), image(64)",
        "CrossFormer": "V.crossformer.CrossFormer(num_classes=5, dim=(32, 32, 64, 64), depth=(1, 1, 1, 1), global_window_size=(2, 2, 2, 1), local_window_size=2), image(64)",
    },
    "x_transformers": {
        "Decoder": "X.TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=X.Decoder(dim=32, depth=2, heads=2)), (torch.randint(0, 50, (1, 8)),)",
        "Encoder": "X.TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=X.Encoder(dim=32, depth=2, heads=2)), (torch.randint(0, 50, (1, 8)),)",
        "rotary": "X.TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=X.Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True)), (torch.randint(0, 50, (1, 8)),)",
        "alibi": "X.TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=X.Decoder(dim=32, depth=2, heads=2, alibi_pos_bias=True)), (torch.randint(0, 50, (1, 8)),)",
        "rmsnorm": "X.TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=X.Decoder(dim=32, depth=2, heads=2, use_rmsnorm=True, ff_glu=True)), (torch.randint(0, 50, (1, 8)),)",
        "ViTransformerWrapper": "X.ViTransformerWrapper(image_size=32, patch_size=8, num_classes=5, attn_layers=X.Encoder(dim=32, depth=2, heads=2)), image(32)",
        "ContinuousTransformerWrapper": "X.ContinuousTransformerWrapper(dim_in=8, dim_out=4, max_seq_len=16, attn_layers=X.Encoder(dim=32, depth=2, heads=2)), (R(1, 8, 8),)",
    },
}  # fmt: skip


def quantized(name: str) -> nn.Module:
    """The small network as torchao quantizes it."""
    from torchao import quantization

    model = Mlp().eval()
    quantization.quantize_(model, getattr(quantization, name)())
    return model


def names_of(package: str) -> dict[str, Any]:
    """What the expressions of a package's rows use."""
    names: dict[str, Any] = {**globals(), package.partition(".")[0]: importlib.import_module(package)}
    module = names[package]
    short = {"torchvision": ("M", "models"), "monai": ("N", "networks.nets"), "torch_geometric": ("G", "nn"), "torchmetrics": ("T", "functional"), "diffusers": ("D", ""), "open_clip": ("O", ""), "lightning": ("L", ""), "peft": ("P", ""), "kornia": ("K", ""), "segmentation_models_pytorch": ("SM", ""), "vit_pytorch": ("V", ""), "x_transformers": ("X", ""), "sentence_transformers": ("st", "")}  # fmt: skip
    if package in short:
        name, inner = short[package]
        names[name] = importlib.import_module(f"{package}.{inner}") if inner else module
    if package == "torchaudio":
        names |= {"AM": importlib.import_module("torchaudio.models"), "AT": importlib.import_module("torchaudio.transforms")}  # fmt: skip
    if package == "monai":
        names["ML"] = importlib.import_module("monai.losses")
    if package == "sentence_transformers":
        names["S"] = importlib.import_module("sentence_transformers.models")
    if package == "timm":
        names |= {"P": {"crossvit": 240, "maxvit": 256, "botnet": 256, "haloregnetz": 256, "swinv2_cr": 224, "inception_v3": 128, "test": 160}, "F": _FIXED}  # fmt: skip
    if package == "lightning":
        for part in ("boring_classes", "transformer"):
            importlib.import_module(f"lightning.pytorch.demos.{part}")
    if package == "vit_pytorch":
        for part in ("deepvit", "cait", "cct", "mobile_vit", "crossformer"):
            importlib.import_module(f"vit_pytorch.{part}")
    if package == "einops":
        layers = importlib.import_module("einops.layers.torch")
        names |= {n: getattr(layers, n) for n in ("Rearrange", "Reduce", "EinMix")}
    return {**names, "Q": quantized}


def make(package: str, name: str, names: dict[str, Any]) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model of a row, with arguments."""
    torch.manual_seed(0)
    if package == "transformers":
        sys.path.insert(0, str(ROOT))
        from tests.models.zoo import build

        model, kwargs = build(name)
        return model.eval(), (), kwargs
    model, args, *rest = eval(CASES[package][name], names)
    return model.eval(), args, rest[0] if rest else {}


def flat(value: Any) -> list[torch.Tensor]:
    """All tensors of a result."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else vars(value).values() if hasattr(value, "__dict__") else ()  # fmt: skip
    return [tensor for item in items for tensor in flat(item)]


def widened(value: Any) -> Any:
    """Arguments in float64."""
    from torch.utils._pytree import tree_map

    return tree_map(lambda v: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else copy.copy(v), value)  # fmt: skip


def distance(results: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest element of each."""
    if len(results) != len(exact):
        return float("inf")
    worst = 0.0
    for a, b in zip(results, exact, strict=True):
        if a.shape != b.shape or a.is_nested:
            return float("inf")
        a, b = a.detach().double(), b.detach().double()
        if b.numel() and not torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)):
            worst = max(worst, float((a - b).abs().nan_to_num(1e9).max() / b.abs().nan_to_num().max().clamp_min(1e-12)))
    return worst


def measure(package: str, name: str, names: dict[str, Any]) -> dict[str, Any]:
    """One row: what came of it."""
    import firebrick
    from firebrick.report import recorder

    firebrick.reset(), recorder.reset()
    out: dict[str, Any] = {"package": package, "name": name, "torch": torch.__version__}
    try:
        model, args, kwargs = make(package, name, names)
        with torch.no_grad():
            torch.manual_seed(1)
            plain = flat(model(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
    except Exception as error:
        return {**out, "state": "not built", "why": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    exact = None
    try:
        with torch.no_grad():
            torch.manual_seed(1)
            wide = copy.deepcopy(model).double()
            exact = flat(wide(*widened(args), **widened(kwargs)))
            near = distance(plain, exact)
    except Exception:
        near = 0.0
    if exact is None or near > 1e-2:  # it has no form in float64
        exact, near = plain, 0.0
    compiled = firebrick.compile(model)
    start, busy = time.monotonic(), processor_seconds()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(1)
            first = flat(compiled(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
            out["wall"], out["seconds"] = round(time.monotonic() - start, 2), round(processor_seconds() - busy, 2)
            torch.manual_seed(1)
            again = flat(compiled(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
    except Exception as error:
        cause = error.__cause__ or error
        return {**out, "state": "raises", "why": f"{type(cause).__name__}: {cause}".splitlines()[0][:300]}
    stats = firebrick.stats()
    counts, reasons = stats["counts"], stats["reasons"]
    far = max(distance(first, exact), distance(again, exact))
    out |= {"far": far, "near": near, "graphs": counts.get("graphs", 0), "breaks": reasons.get("break", {})}
    out["eager graphs"] = sum(n for key, n in counts.items() if key.startswith("graphs run eagerly"))
    out["fallback"] = reasons.get("fallback", {})
    out["state"] = "right" if far <= max(20 * near, 5e-5) else "wrong"
    return {**out, **theirs(model, args, kwargs)}


def processor_seconds() -> float:
    """Of this process and those that it started and that ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def theirs(model: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """Graphs that torch.compile makes of it, or why it makes none."""
    import torch._dynamo
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    try:
        with torch.no_grad():
            torch.compile(model, backend=counter)(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    except Exception as error:
        return {"theirs": None, "their why": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    return {"theirs": counter.frame_count}


def serve(package: str) -> None:
    """Answer each name on stdin with a line of JSON, from a process of its own."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    try:
        names = names_of(package)
    except Exception as error:
        print(json.dumps({"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}), file=out)
        return
    importlib.import_module("torch._dynamo.testing")

    import firebrick

    for part in pkgutil.walk_packages(firebrick.__path__, "firebrick."):  # once, not in each process
        if part.name.split(".")[1] in ("capture", "trace", "passes", "lower", "fuse", "host", "runtime", "pipeline"):
            importlib.import_module(part.name)
    print(json.dumps({"ready": True}), file=out)
    for line in sys.stdin:
        name = line.strip()
        child = os.fork()
        if not child:
            signal.alarm(LIMIT)  # its default action ends the process
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            print(json.dumps(measure(package, name, names), default=str), file=out)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            state = "hangs" if code == -signal.SIGALRM else "dies"
            print(json.dumps({"package": package, "name": name, "state": state, "why": f"status {code}"}), file=out)


def sweep(packages: list[str], results: Path, minutes: float) -> list[dict[str, Any]]:
    """Measure what is not in `results` yet."""
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    known = {(row["package"], row["name"]) for row in done}
    end = time.monotonic() + minutes * 60
    with open(results, "a", buffering=1) as file:
        for package in packages:
            names = [name for name in rows_of(package) if (package, name) not in known]
            if not names or time.monotonic() > end:
                continue
            command = [sys.executable, str(Path(__file__).resolve()), "--serve", package]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1) as server:  # fmt: skip
                first = json.loads(server.stdout.readline() or '{"failed": "it does not start"}')
                if "failed" in first:
                    print(f"{package}: {first['failed']}", flush=True)
                    continue
                for name in names:
                    if time.monotonic() > end:
                        break
                    server.stdin.write(f"{name}\n")
                    row = json.loads(server.stdout.readline())
                    done.append(row)
                    file.write(json.dumps(row) + "\n")
                    print(f"{package} {name}: {row['state']} {row.get('graphs', '')} {row.get('theirs', '')} {row.get('why', '')}", flush=True)  # fmt: skip
                server.stdin.close()
    return done


def rows_of(package: str) -> list[str]:
    """Names of a package's models."""
    if package != "transformers":
        return list(CASES[package])
    sys.path.insert(0, str(ROOT))
    from tests.models.zoo import ZOO

    return list(ZOO)


def markdown(done: list[dict[str, Any]]) -> str:
    """The page of results."""
    built = [row for row in done if row["state"] != "not built"]
    cpu = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), platform.machine())  # fmt: skip
    lines = ["# Other people's models", "", f"`make wild`, {datetime.now(timezone.utc):%Y-%m-%d}, {cpu}, Python {platform.python_version()}, torch {torch.__version__}.", ""]  # fmt: skip
    lines += ["Small models with random weights, in inference. Right: as near to float64 as eager is, but for rounding. Graphs: Firebrick's beside those of `torch.compile(backend=\"eager\")`, where it makes any.", ""]  # fmt: skip
    lines += ["| package | version | torch | models | right | whole | graphs <= torch.compile's | eager kernels | slower than 10 s |", "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for package in [*dict.fromkeys(row["package"] for row in built), "all"]:
        mine = [row for row in built if package in (row["package"], "all")]
        right = [row for row in mine if row["state"] == "right"]
        known = [row for row in right if row["theirs"] is not None]
        few = f"{sum(row['graphs'] <= row['theirs'] for row in known)} of {len(known)}"
        versions = ("", "") if package == "all" else (_version(package), ", ".join(sorted({row["torch"] for row in mine})))  # fmt: skip
        lines.append(f"| {package} | {versions[0]} | {versions[1]} | {len(mine)} | {len(right)} | {sum(row['graphs'] == 1 and not row['breaks'] for row in right)} | {few} | {sum(row['eager graphs'] > 0 for row in right)} | {sum(row['seconds'] > 10 for row in right)} |")  # fmt: skip
    total = [row for row in built if row["state"] == "right"]
    breaks = Counter(why for row in total for why in row["breaks"])
    lines += ["", "## Breaks", "", "| models | reason |", "|---|---|", *(f"| {n} | {_cell(why)} |" for why, n in breaks.most_common())]  # fmt: skip
    bad = [row for row in built if row["state"] != "right"]
    lines += ["", "## Not right", "", "| model | what | why |", "|---|---|---|"]
    lines += [f"| {row['package']} {row['name']} | {row['state']} | {_cell(row.get('why') or str(row.get('far')))} |" for row in bad]  # fmt: skip
    lines += ["", "## All", "", "| model | graphs | torch.compile | compile s | error | eager's |", "|---|---|---|---|---|---|"]  # fmt: skip
    lines += [f"| {row['package']} {row['name']} | {row['graphs']} | {'fails' if row['theirs'] is None else row['theirs']} | {row['seconds']:.1f} | {row['far']:.0e} | {row['near']:.0e} |" for row in total]  # fmt: skip
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.splitlines()[0].replace("|", "/")[:160]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version({"open_clip": "open_clip_torch"}.get(package, package))
    except importlib.metadata.PackageNotFoundError:
        return ""


def main() -> None:
    """Sweep, and write the page."""
    parser = argparse.ArgumentParser(description="Example: python tests/sweeps/wild.py --package einops")
    parser.add_argument("--package", action="append", choices=list(CASES))
    parser.add_argument("--serve", choices=list(CASES))
    parser.add_argument("--results", type=Path, default=Path("wild.jsonl"))
    parser.add_argument("--minutes", type=float, default=240)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    done = sweep(given.package or list(CASES), given.results, given.minutes)
    print(Counter(row["state"] for row in done))
    if given.markdown:
        given.markdown.write_text(markdown(done))


if __name__ == "__main__":
    main()
