"""The words of the study of HetPipe: how the paper was read, and what its tables do not say."""

from __future__ import annotations

TITLE = "HetPipe: allocations of unlike devices to virtual workers"
READING = (
    "Source: HetPipe (Park et al., USENIX ATC 2020), Table 4 and Figures 4 and 5: VGG-19 and ResNet-152 on "
    "four servers with four GPUs each, minibatches of 32 images. V TITAN V, R TITAN RTX, G RTX 2060, Q Quadro "
    "P4000; `scenarios/hetpipe/*.yaml` has cluster and models. The bars of the figures were measured, to "
    "about 8 images/s.",
    "A virtual worker is partitioned by HetPipe's own recurrence (`pipecut_literature/hetpipe/partition.py`): the "
    "slowest device is fastest, over all cuts and all orders of the devices; a device computes its layers and "
    "receives activations and gradients at the line rate of the link (15.75 GB/s inside a server, 56 Gbit/s "
    "between); memory with min(N_m, k - q + 1) minibatches in flight at device q of k. N_m is the paper's. "
    "Its throughput, the waves of wave synchronous parallelism, parameter servers and Horovod are in "
    "`pipecut_literature/hetpipe/model.py`.",
    "Two numbers a model are read from the paper, both from its simplest rows. All devices reach the part of "
    "their peak (2 x cores x clock) that a single TITAN V reaches in Table 4. Where weights are summed or "
    "exchanged, links give the part of their bandwidth that Horovod reaches on the four TITAN V of one "
    "server, its time beyond computing taken as a ring all-reduce. Nothing else is fitted, no row has a "
    "number of its own. What is compared is the order; the rates stand beside it.",
)
REMARKS = {
    "calibration": (
        "More than 100 % of peak: multiply-accumulates are counted as direct convolutions make them, and the "
        "GPU's library needs fewer for 3 x 3 kernels. The paper measured V faster than R; by cores and clock "
        "it is the other way round, and one efficiency for all classes keeps it so.",
        "Last column: memory of a whole training step with one minibatch, by pipecut's formulas. The RTX 2060 "
        "has 6 GiB: VGG-19 fits and ResNet-152 does not, as the paper found with Horovod.",
    ),
    "single": (
        "Last column: up to one minibatch a device (our memory formulas; more never fits worse, since "
        "min(N_m, k - q + 1) grows no further). The paper's framework fits fewer: 2 with NP, for both models.",
        "The pairs in another order are VVVV and RRRR, which the paper measured the other way round, and "
        "pairs with a virtual worker that mixes devices; most of those are slower in the paper than here. Its "
        "partitions are not published, so where that time goes cannot be told.",
    ),
    "allocation": (
        "The published order is ours, for both models and all pairs. The rates are 1.0 to 2.7 times the "
        "published ones: nothing here accounts for what a pipeline loses besides its slowest device. At line "
        "rate synchronisation hides behind computing and the order of ED and ED-local is lost.",
    ),
    "growth": (
        "HetPipe: ED-local, one virtual worker for [V]. Horovod: the slowest device's minibatch, then a ring "
        "over the slowest link in use. Horovod on 4 V is where the links' efficiency comes from.",
    ),
    "pairs": ("Pairs that the paper shows as equal are left out.",),
    "waves": (
        "s_global = (D + 1) (s_local + 1) + s_local - 1 with s_local = N_m - 1: how many minibatches a weight "
        "may be behind. More distance hides more of the exchange, until computing alone is left. What "
        "staleness costs in accuracy is not modelled (the paper: D = 4 is best, D = 32 loses 4.7 %).",
    ),
    "pipedream": (
        "PipeDream's recurrence counts equal devices: here those of the slowest class, joined by the slowest "
        "link; the plan is laid on the line of servers and priced there, without a memory limit and with "
        "weights summed at line rate. The paper reports its best plans with 12 to 14 stages, such as 4-2 and "
        "ten single devices.",
    ),
}
"""Sentences below each table."""
