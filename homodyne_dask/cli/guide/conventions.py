"""Conventions: what is fitted, in which units, and the factor 2.22.

A bin is one region (q, φ) of the detector. Its two-time correlation is

    c2(t1, t2) = offset + contrast · f,    f = exp(-q² ΔC)          (static)
                                           f = exp(-q² ΔC) · S      (laminar_flow)

t1 < t2 are times in s from the first frame of the stored matrix, whatever frames are selected;
`ingest --time-offset` adds the waiting time before it. Each pair of frames counts once. ΔC and ΔG are
the integrals from t1 to t2 of

    J(t) = D0·t^alpha + D_offset                                    [Å²/s]
    γ̇(t) = gamma_dot_t0·t^beta + gamma_dot_t_offset                 [1/s]

by the trapezoid rule over the frames. In all that, D0 is J at t = 1 s where D_offset is 0, and
J = 2·D for a Stokes-Einstein coefficient D: f is a squared field, |exp(-q² D τ)|². "beta" is the
exponent of the shear rate; the optical contrast is called contrast. phi0 [degree] is the direction of
flow on the detector, known up to half a turn. L below is the gap between the plates.

The shear factor S comes in two conventions, and every result records which:

    physical (default)   S = sinc²(½ q L cos(φ - phi0) ΔG),   sinc x = sin x / x
    homodyne             S = sinc⁴(q L cos(φ - phi0) ΔG / 2π)

`physical` is the average over the gap of a linear velocity profile (Fuller 1980, Busch 2008, Burghardt
2012): its γ̇ is that of the sample. `homodyne` is what the packages homodyne (from version 2) and
xpcsjax compute, whatever their manuals say. At small strain both fall as 1 - x²/3, where x is
½ q L cos(φ - phi0) ΔG in `physical` and √2/π times that in `homodyne`. So the same decay has a γ̇ that
is π/√2 times as large in `homodyne`:

>>> import math
>>> round(math.pi / math.sqrt(2), 4)
2.2214

At larger strain the two are not the same function, and a fit settles near that factor, not on it:

>>> import homodyne_dask as hd
>>> flow = {"D0": 0, "alpha": 0, "D_offset": 0, "beta": 0, "gamma_dot_t_offset": 0, "phi0": 0}
>>> seen = {"times": [0.0, 0.1, 0.2, 0.3, 0.4], "q": 0.005, "phi": 0, "gap": "200 um"}
>>> seen |= {"contrast": 1, "offset": 0}
>>> def decay(convention, rate):
...     parameters = flow | {"gamma_dot_t0": rate}
...     c2 = hd.predict(hd.LAMINAR_FLOW, parameters, convention=convention, **seen)
...     return [round(float(value), 3) for value in c2[0, 0, 1:]]
>>> decay("physical", 1.0e-3)
[0.919, 0.708, 0.442, 0.207]
>>> decay("homodyne", 2.2214e-3)
[0.92, 0.712, 0.458, 0.238]

Use `homodyne` to continue a series published with those packages, `physical` for new work, and never
compare γ̇ across the two.
"""
