"""Tertium's own methods: name | aliases | parameters. Generated: ``make docs``."""

METHODS = """
an_ls | lsan | smoothing
asl |  | gamma_positive gamma_negative clip
auto |  | labels_per_image
bce |  |
bce_ls |  | smoothing
curriculum |  | alpha beta gamma rounds confidence
em |  | alpha apl warmup frozen beta
epr |  | k strength
focal |  | gamma
gr |  | q2 q3 w_start w_end b_start b_end mu_start mu_end sigma_start sigma_end
hill |  | lam margin gamma detached
ignore | ne iu |
likelihood |  | labels_per_image
ll_cp |  | delta threshold start step rate_of
ll_ct |  | delta threshold start step rate_of
ll_r |  | delta threshold start step rate_of
ls |  | temperature positive_weight
negative | an fe | positive_weight
p_asl |  | gamma_positive gamma_negative gamma_unknown
positive |  |
pseudo | pal | balance exposure margin penalty share
ranking |  |
role |  | k strength lr_factor optimizer
sampled_negative |  | rate
se_i |  | positive_weight beta gamma neighbours distance aggregate temperature scale
se_l |  | positive_weight beta gamma neighbours distance aggregate temperature scale
selective | csl | gamma_positive gamma_negative gamma_unknown likelihood k pool prior top eta soft_prior
soft_exposure | se | positive_weight beta gamma neighbours distance aggregate temperature scale
splc |  | threshold start margin gamma detached
wan |  |
weighted_ignore | wne wce | alpha beta gamma
"""
